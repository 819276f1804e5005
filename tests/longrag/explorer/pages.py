"""What the tests of the explorer share: hostile texts, and the elements of a page."""

from html.parser import HTMLParser

HOSTILE = [
    "</script><script>window.ran = 1</script>",
    "<img src=x onerror='window.ran = 2'>",
    "<svg onload='window.ran = 3'></svg>",
    '"><iframe src="data:text/html,<script>parent.ran = 4</script>"></iframe>',
    "javascript:window.ran = 5",
    "<!--<script>window.ran = 6",
    "]]></script  ><style>*{display:none}</style>",
    "{style} {script} %s ${window.ran = 7} `${window.ran = 8}`",
    "line\u2028separator\u2029and \ud800 half a pair \x00\x1b[31m \ufeff \u202e",
    "\U0001f30a waves \U0001f30a. The pier is long. ",
    "&lt;b&gt; &amp; &#60;",
]


class Elements(HTMLParser):
    """Collects every element and attribute, and the text of each script and style."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self._inside = [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag in ("script", "style")
        if self._inside:
            self.texts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.texts[-1] += data
