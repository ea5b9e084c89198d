"""A tiny profile folder and workload with figures that a reader can check by hand."""

from __future__ import annotations

from pathlib import Path

HEADER = (
    "name,submission_time,application,num_gpus,target_batch_size,target_lr,"
    "target_gradient_steps,target_metric\n"
)
ROWS = (
    "a,10,tiny@rte,1,8,1e-3,1,0.6\n",
    "b,20,tiny@mrpc,2,4,1e-3,1,0.8\n",
    "c,30,tiny@wnli,1,8,1e-4,2,0.9\n",
)


def write_profiles(folder: Path) -> Path:
    """Write lut/V100 and curves/ for a model ``tiny`` with batches of 2 to 8.

    step(local batch b) = 0.1 b seconds without synchronisation on one GPU, and 0.1 b + 0.1 with 0.1 s
    of it on more.
    """
    lut, curves = folder / "lut" / "V100", folder / "curves"
    lut.mkdir(parents=True)
    curves.mkdir(parents=True)
    lines = ["placement,local_bsz,step_time,sync_time"]
    for placement in ("1", "2", "3", "4", "14", "24", "34", "44"):
        sync = 1e-8 if placement == "1" else 0.1
        lines += [f"{placement},{b},{0.1 * b + sync},{sync}" for b in (2, 4, 8)]
    (lut / "tiny_placements.csv").write_text("\n".join(lines) + "\n")
    (lut / "tiny_memory.csv").write_text("local_bsz,gpu_memory\n4,10\n8,18\n")
    (lut / "tiny_context_switch.csv").write_text("app,time_cost\nrte,5.5\n")
    (lut / "tiny_sharing.csv").write_text(
        "left_bsz,left_step_time,left_gpu_memory,right_bsz,right_step_time,right_gpu_memory\n"
        "4,0.5,10,8,1.0,18\n"
    )
    normal = ["model,task,lr,grad_accum_steps,metric,epoch,value"]
    # rte: own setting reaches 0.6 at epoch 4, the best setting at epoch 2
    normal += [f"tiny,rte,1e-3,1,eval_accuracy,{e},{0.2 + 0.1 * e}" for e in range(1, 11)]
    normal += [f"tiny,rte,1e-2,1,eval_accuracy,{e},{0.4 + 0.1 * e}" for e in range(1, 11)]
    # mrpc: 0.8 at epoch 5; no other setting
    normal += [f"tiny,mrpc,1e-3,1,eval_f1,{e},{0.3 + 0.1 * e:.3f}" for e in range(1, 11)]
    # wnli: never reaches 0.9
    normal += [f"tiny,wnli,1e-4,2,eval_accuracy,{e},0.5" for e in range(1, 11)]
    (curves / "normal_hpo_curves.csv").write_text("\n".join(normal) + "\n")
    warm = ["model,source_task,target_task,metric,epoch,value"]
    # rte after mrpc reaches 0.6 at epoch 1; mrpc after rte never reaches 0.8
    warm += [f"tiny,mrpc,rte,eval_accuracy,{e},0.7" for e in range(1, 11)]
    warm += [f"tiny,rte,mrpc,eval_f1,{e},0.7" for e in range(1, 11)]
    (curves / "temporal_transfer_curves.csv").write_text("\n".join(warm) + "\n")
    joint = ["model,task_a,task_b,eval_task,metric,epoch,value"]
    # together: rte at epoch 3, mrpc at epoch 2
    joint += [f"tiny,mrpc,rte,rte,eval_accuracy,{e},{0.3 + 0.1 * e:.3f}" for e in range(1, 11)]
    joint += [f"tiny,mrpc,rte,mrpc,eval_f1,{e},{0.6 + 0.1 * e:.3f}" for e in range(1, 11)]
    (curves / "spatial_transfer_curves.csv").write_text("\n".join(joint) + "\n")
    return folder


def write_workload(path: Path, rows: tuple[str, ...] = ROWS, header: str = HEADER) -> Path:
    path.write_text(header + "".join(rows))
    return path
