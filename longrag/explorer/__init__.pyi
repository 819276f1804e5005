from .page import Explorer as Explorer
from .page import check_questions as check_questions
from .page import count_nodes as count_nodes
from .page import count_units as count_units
from .page import explore as explore
from .page import summary_html as summary_html
from .runs import explore_outputs as explore_outputs
from .runs import explore_traces as explore_traces
