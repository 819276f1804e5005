from .excerpts import extract_excerpts as extract_excerpts
from .extractive import answer_prompt as answer_prompt
from .two_turn import read as read
