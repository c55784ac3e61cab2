"""What a policy is told beside its task: the chip, rules, the API and examples."""

from baselines.context.rules import Rule, rules
from baselines.context.selection import Section, context_for, sections, select, text_of

__all__ = ["Rule", "Section", "context_for", "rules", "sections", "select", "text_of"]
