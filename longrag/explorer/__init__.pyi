from .page import explore as explore
from .runs import explore_traces as explore_traces
