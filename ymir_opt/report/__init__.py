"""Static HTML reports: one plan, and simulations. Self-contained pages, no remote parts."""

from ymir_opt.report.comparison import comparison_page
from ymir_opt.report.plan import plan_page

__all__ = ["comparison_page", "plan_page"]
