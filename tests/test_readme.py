"""What the README shows must work as it stands there."""

import re
from pathlib import Path

import gymnasium

from jaxbench_env import Status

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_there_are_exactly_two_set_up_commands():
    demo, tests = blocks("bash")
    assert demo.strip().endswith("jaxbench demo") and tests.strip().endswith("-m pytest")


def test_the_first_example_runs(capsys):
    answers = []

    def my_model(task, source="", feedback=""):
        answers.append(feedback)
        return f"Here it is:\n\n```python\nattempt = {len(answers)}\n```\n"

    exec(blocks("python")[0], {"my_model": my_model})
    assert len(answers) == 4 and "define `workload(...)`" in answers[-1]
    assert "# mamba2_scan" in capsys.readouterr().out


def test_the_example_of_tuning_runs():
    (example,) = (block for block in blocks("python") if "TemplateAction" in block)
    scope = {"gym": gymnasium}
    exec(example, scope)
    assert scope["observation"] in scope["env"].observation_space and scope["reward"] > 0


def test_every_status_is_explained():
    named = set(re.findall(r"`(\w+)`", README[README.index("| status |") :]))
    assert {status.value for status in Status} <= named
