"""What drives the metrics: pipelines asked the questions of data sets, measured and compared.

Settings, runs and reports belong here. Metrics of one question do not.
"""

from longrag.evaluation.harness.evaluating import Watch, evaluate
from longrag.evaluation.harness.metering import Generator
from longrag.evaluation.harness.outcomes import Found, Outcome
from longrag.evaluation.harness.report import COSTS, Choice, Report, Result
from longrag.evaluation.harness.scoring import MEASURES
from longrag.evaluation.harness.settings import (
    ABLATIONS,
    PIPELINES,
    Pipeline,
    Settings,
    Variant,
    variants,
)

__all__ = [
    "ABLATIONS",
    "COSTS",
    "MEASURES",
    "PIPELINES",
    "Choice",
    "Found",
    "Generator",
    "Outcome",
    "Pipeline",
    "Report",
    "Result",
    "Settings",
    "Variant",
    "Watch",
    "evaluate",
    "variants",
]
