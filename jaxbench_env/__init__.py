"""A Gymnasium environment in which policies write Pallas TPU kernels.

>>> import gymnasium as gym, jaxbench_env
>>> env = gym.make("JAXBench/mamba2_scan")
"""

from jaxbench_env.api import evaluate, evaluate_many
from jaxbench_env.env import KernelEnv, SuiteEnv
from jaxbench_env.evaluator.evaluator import Evaluator
from jaxbench_env.evaluator.result import EvalResult, Stage, Status
from jaxbench_env.extract import extract_source
from jaxbench_env.feedback import feedback
from jaxbench_env.outcome import outcome
from jaxbench_env.recorded import RecordedEvaluator
from jaxbench_env.registration import register_all, register_workload
from jaxbench_env.spaces import SourceText

__all__ = [
    "EvalResult",
    "Evaluator",
    "KernelEnv",
    "RecordedEvaluator",
    "SourceText",
    "Stage",
    "Status",
    "SuiteEnv",
    "evaluate",
    "evaluate_many",
    "extract_source",
    "feedback",
    "outcome",
    "register_workload",
]

register_all()
