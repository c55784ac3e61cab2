"""Kernel files as search spaces, and an environment whose actions are their tunables.

A kernel file that can be tuned has module-level constants, a dict that gives each its domain, and a
function that says what must hold between them:

    BLOCK = 512
    TUNABLES = {"BLOCK": (256, 512, 1024)}

    def constraints(BLOCK):
        return {"two blocks fit in VMEM": 2 * BLOCK * 8192 * 2 <= 100 * 2**20}
"""

from baselines.templates.env import TemplateAction
from baselines.templates.space import MAX_SIZE, TemplateSpace
from baselines.templates.text import Template, TemplateError, is_template

__all__ = [
    "MAX_SIZE",
    "Template",
    "TemplateAction",
    "TemplateError",
    "TemplateSpace",
    "is_template",
]
