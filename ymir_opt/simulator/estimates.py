"""What policies are told: estimates with injectable, seeded error, kept apart from the truth.

An :class:`Estimates` object is built from a workload and keeps only numbers: no reference to the workload,
its jobs or its speeds remains in it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from ymir_opt.jobmodel import packed
from ymir_opt.policies.view import SpeedTable, TransferTable
from ymir_opt.simulator.workload import TraceJob, Workload

__all__ = ["EstimateError", "Estimates"]


@dataclass(frozen=True)
class EstimateError:
    """Log-normal errors, as standard deviations of the logarithm.

    Attributes
    ----------
    work : float
        Of every job's total work (one draw a job).
    speed : float
        Of every throughput key (one draw a key and type: it scales all counts).
    transfer : float
        Of every transfer ratio.
    seed : int
    """

    work: float = 0.0
    speed: float = 0.0
    transfer: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Estimates:
    """Estimated speed, transfer and total work.

    Attributes
    ----------
    speed : SpeedTable
    transfer : TransferTable
    error : EstimateError
    """

    speed: SpeedTable
    transfer: TransferTable
    error: EstimateError

    @classmethod
    def build(cls, workload: Workload, error: EstimateError | None = None, node_gpus: int = 4) -> Estimates:
        """Return estimates of a workload's speeds and transfer with the given errors.

        Parameters
        ----------
        workload : Workload
        error : EstimateError or None
            None: no error.
        node_gpus : int
            GPUs of a node, for packed placements.
        """
        error = error or EstimateError()
        rng = np.random.default_rng([error.seed, 1])
        types, keys = workload.speeds.types, workload.throughput_keys
        shape = (len(keys), len(types), workload.counts + 1)
        rate, predicted = np.zeros(shape), np.full(shape, np.inf)
        memory = np.full(shape, np.nan)
        cold, warm = np.zeros(shape[:2]), np.zeros(shape[:2])
        for k, (model, batch) in enumerate(keys):
            for t, kind in enumerate(types):
                cold[k, t] = workload.speeds.start_s(model, kind, False)
                warm[k, t] = workload.speeds.start_s(model, kind, True)
                factor = float(np.exp(error.speed * rng.standard_normal())) if error.speed else 1.0
                for n in range(1, workload.counts + 1):
                    rate[k, t, n] = factor * workload.speeds.rate(model, batch, packed(n, node_gpus), kind)
                    memory[k, t, n] = workload.speeds.memory_gib(model, batch, n, kind)
                    predicted[k, t, n] = workload.speeds.predicted(model, batch, n, kind) / factor
        rigid = workload.speeds.start_s("", types[0], False) if not keys else 0.0
        memories = np.array([workload.speeds.gpu_memory_gib(kind) for kind in types])
        for array in (rate, predicted, cold, warm, memory, memories):
            array.flags.writeable = False
        speed = SpeedTable(types, keys, rate, predicted, cold, warm, memory, memories, rigid)
        tables, known = [], workload.transfer
        for true, censored in (
            (known.warm, known.warm_censored),
            (known.joint, known.joint_censored),
            (known.share, None),
        ):
            noise = np.exp(error.transfer * rng.standard_normal(true.shape)) if error.transfer else 1.0
            table = np.array(true * noise, dtype=np.float64)
            if censored is not None and censored.size:
                # what is known only from below is no estimate
                table[censored] = np.nan
            table.flags.writeable = False
            tables.append(table)
        share_gib = np.array(known.share_gib, dtype=np.float64)
        share_gib.flags.writeable = False
        transfer = TransferTable(
            known.models,
            known.tasks,
            known.batches,
            tables[0],
            tables[1],
            tables[2],
            share_gib,
            error.transfer,
        )
        return cls(speed, transfer, error)

    def total(self, job: TraceJob) -> float:
        """Return the estimated total work of an arriving job (the same for the same seed and id)."""
        if not self.error.work:
            return job.work
        rng = np.random.default_rng([self.error.seed, 2, zlib.crc32(job.id.encode())])
        return job.work * float(np.exp(self.error.work * rng.standard_normal()))
