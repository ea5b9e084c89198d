"""The job model: what measured tables and learning curves say about a job.

Pure (numpy and csv only). Start with :class:`JobModel`::

    model = JobModel("…/titan")                       # folder with lut/ and curves/
    jobs = read_workload("…/workload-0.csv")          # tuple of WorkloadJob
    model.samples_per_s("vit", 384, 8)                # samples/s on 8 V100, packed
    model.samples_per_s("vit", 384, (3, 3), "A100")   # a placement on A100
    model.work(jobs[0])                               # samples to target, censoring said
    model.cold_start_s("vit")                         # seconds of a start
    model.temporal_ratio(job, "rte", "best_single")   # work after another task over work alone
    model.joint_ratio(job, "rte", "trace")            # work in joint training over work alone
"""

from ymir_opt.jobmodel.curves import MAX_EPOCHS, Curve, Curves, Reach, Setting, first_epoch
from ymir_opt.jobmodel.memory import MemoryTable, SharingTable
from ymir_opt.jobmodel.model import RESTART_S, SAMPLES_PER_EPOCH, JobModel, TransferRatio, Work
from ymir_opt.jobmodel.throughput import Iteration, StepTable, accumulation, normal_placement, packed
from ymir_opt.jobmodel.workload import WorkloadJob, read_workload, reference_target

__all__ = [
    "MAX_EPOCHS",
    "RESTART_S",
    "SAMPLES_PER_EPOCH",
    "Curve",
    "Curves",
    "Iteration",
    "JobModel",
    "MemoryTable",
    "Reach",
    "Setting",
    "SharingTable",
    "StepTable",
    "TransferRatio",
    "Work",
    "WorkloadJob",
    "accumulation",
    "first_epoch",
    "normal_placement",
    "packed",
    "read_workload",
    "reference_target",
]
