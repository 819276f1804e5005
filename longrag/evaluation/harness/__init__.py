"""What drives the metrics: pipelines asked the questions of data sets, measured and compared.

Settings, runs and reports belong here. Metrics of one question do not.
"""

from longrag.evaluation.harness.choosing import MARGIN, Choice
from longrag.evaluation.harness.evaluating import Watch, evaluate
from longrag.evaluation.harness.metering import Generator
from longrag.evaluation.harness.outcomes import Found, Outcome
from longrag.evaluation.harness.report import Report
from longrag.evaluation.harness.result import COSTS, Result
from longrag.evaluation.harness.scoring import MEASURES
from longrag.evaluation.harness.settings import (
    ABLATIONS,
    CONTROLS,
    PIPELINES,
    Pipeline,
    Settings,
    Variant,
    variants,
    with_controls,
)

__all__ = [
    "ABLATIONS",
    "CONTROLS",
    "COSTS",
    "MARGIN",
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
    "with_controls",
]
