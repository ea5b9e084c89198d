"""``python -m ymir_opt`` is ``ymir-plan``."""

from ymir_opt.cli.main import main

if __name__ == "__main__":
    main()
