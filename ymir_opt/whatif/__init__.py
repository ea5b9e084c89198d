"""What if: a plan with one job's option forced, and two plans of changed snapshots side by side."""
