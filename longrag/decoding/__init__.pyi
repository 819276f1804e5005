from .answers import parse_answer as parse_answer
from .answers import riches_prompt as riches_prompt
from .constraint import Constraint as Constraint
from .decoder import RichesDecoder as RichesDecoder
from .processor import RichesLogitsProcessor as RichesLogitsProcessor
