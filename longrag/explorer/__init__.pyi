from .page import explore as explore
from .runs import explore_outputs as explore_outputs
from .runs import explore_traces as explore_traces
