"""What drives the metrics: pipelines asked the questions of data sets, measured and compared.

Settings, runs and reports belong here. Metrics of one question do not.
"""

from longrag.evaluation.harness.evaluating import evaluate
from longrag.evaluation.harness.report import Report
from longrag.evaluation.harness.result import Result
from longrag.evaluation.harness.settings import Pipeline, with_controls

__all__ = [
    "Pipeline",
    "Report",
    "Result",
    "evaluate",
    "with_controls",
]
