from .answers import check_answer as check_answer
from .checking import check_quote as check_quote
from .corpus import QuoteIndex as QuoteIndex
from .passages import QuotablePassage as QuotablePassage
