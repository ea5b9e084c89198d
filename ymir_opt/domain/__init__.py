"""What a job, node, cluster, snapshot, group and plan is: typed, validated, immutable."""
