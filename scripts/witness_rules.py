"""Tries the rules of `baselines.context` on their witnesses, and keeps what was seen.

    python scripts/witness_rules.py [NAME ...] [--json]

Writes docs/context_rules.json (verdicts by version of jax and by rule) and the table in
docs/context.md. Without names every rule is tried: some minutes. The exit code is 1 if a rule does
not hold.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from baselines.context.rules import Rule, Verdict, every_rule, rules
from jaxbench_env.evaluator.build import installed_versions
from jaxbench_env.evaluator.evaluator import PROTOCOL
from jaxbench_env.progress import progress_bar

DOCS = Path(__file__).resolve().parent.parent / "docs"
RESULTS, PAGE = DOCS / "context_rules.json", DOCS / "context.md"
START, END = "<!-- rules -->\n", "<!-- end of rules -->\n"


def table(results: dict) -> str:
    """The rules with what their witnesses showed with every version that was tried, in Markdown."""
    lines = []
    for topic in dict.fromkeys(rule.topic for rule in every_rule()):
        versions = ", ".join(results)
        lines += [f"\n### {topic}\n", f"| rule | broken | {versions} |", "|---|---|---|"]
        for rule in (rule for rule in every_rule() if rule.topic == topic):
            many = f" ({len(rule.broken)} kernels)" if len(rule.broken) > 1 else ""
            verdict = f"{rule.status.value}: {rule.message}{many}"
            shown = ", ".join(_shown(rule, version, results) for version in results)
            lines.append(f"| {rule.text} | {verdict} | {shown} |")
    return "\n".join(lines) + "\n"


def _shown(rule: Rule, version: str, results: dict) -> str:
    if not rule.holds_with(version):
        return "no rule"
    seen = results[version]["rules"].get(rule.name)
    if not seen or seen["sha256"] != rule.sha256:
        return "not tried"
    return "holds" if seen["ok"] else "**does not hold**"


def main() -> int:
    """Tries rules; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="rules to try; all by default")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    options = parser.parse_args()
    known = {rule.name: rule for rule in rules()}
    for name in options.names:
        if name not in known:
            parser.error(f"no rule {name!r}; docs/context.md lists them")
    chosen = [known[name] for name in options.names] or list(rules())
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with (
        ThreadPoolExecutor(2) as threads,
        progress_bar(len(chosen), "witnesses", None) as advance,
    ):

        def check(rule: Rule) -> Verdict:
            verdict = rule.check()
            advance("" if verdict.ok else f", {rule.name} does not hold")
            return verdict

        verdicts = list(threads.map(check, chosen))
    versions = installed_versions()
    kept = results.get(f"jax {versions.jax}", {}).get("rules", {})
    kept |= {v.rule: dataclasses.asdict(v) for v in verdicts}
    results[f"jax {versions.jax}"] = {
        "libtpu": versions.libtpu,
        "protocol": PROTOCOL,
        "rules": {name: kept[name] for name in known if name in kept},
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if PAGE.exists():
        before, _, rest = PAGE.read_text().partition(START)
        PAGE.write_text(before + START + table(results) + END + rest.partition(END)[2])
    failing = [verdict for verdict in verdicts if not verdict.ok]
    if options.json:
        print(json.dumps([dataclasses.asdict(verdict) for verdict in verdicts], indent=1))
    else:
        for verdict in failing:
            print(f"{verdict.rule} does not hold. Twin {verdict.twin}; broken {verdict.broken}")
        print(f"{len(verdicts) - len(failing)} of {len(verdicts)} rules hold.")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
