"""Speed ratios of jobs that share GPUs: separate processes (gpu_share) and one frozen backbone (colocate)."""
