"""A daemon, or a run of one plan, over counting workers: a program that tests may end at any moment."""

from __future__ import annotations

import sys
from pathlib import Path

from executor_kit import daemon, nodes, open_pool

from ymir_opt.domain.documents import parse_plan, parse_snapshot
from ymir_opt.executors.folder import JobsFolder
from ymir_opt.service.once import adopt_plan, follow


def main(how: str, root: Path) -> None:
    folder = JobsFolder(root / "jobs-dir")
    with open_pool(folder, nodes=nodes(3), quarantine_after=50) as pool:
        if how == "daemon":
            daemon(pool, once_empty=True, round_s=1.0).run(lambda: False)
        else:
            plan = parse_plan((root / "plan.json").read_bytes())
            adopt_plan(pool, plan, parse_snapshot((root / "snapshot.json").read_bytes()))
            follow(pool, lambda: False)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
