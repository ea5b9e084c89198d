"""Static HTML reports: one plan, and simulations. Self-contained pages, no remote parts."""

from ymir_opt.report.plan import plan_page

__all__ = ["plan_page"]
