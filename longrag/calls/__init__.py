"""Calls to the outside as data, and what drives the flows that ask for them.

An algorithm that needs a model or a store is a generator, a *flow*: it yields a tuple of requests
and is sent the list of their outcomes in the same order, each a value or the exception that the
call raised. It never awaits, so the same flow serves sync and async callers and both frameworks;
what answers a request is handed to the driver.

``run`` and ``arun`` drive one flow, whose requests of one ``yield`` are all answered before it goes
on. ``run_all`` and ``arun_all`` drive several: the calls of all of them share one bound on calls in
flight, and each flow goes on as soon as its own answers are in.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
