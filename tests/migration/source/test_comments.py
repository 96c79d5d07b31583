"""Comments are found by line and column, as the parser counts them."""

from __future__ import annotations

from ignite_ipu.migration.source.comments import Comment, find_comments


def test_comments_and_what_only_looks_like_one():
    text = 'x = "# no"  # yes\n# above\ny = (1,  # inside\n     2)\n'
    assert find_comments(text) == [Comment(1, 12, "# yes"), Comment(2, 0, "# above"), Comment(3, 9, "# inside")]


def test_every_line_end_counts():
    assert find_comments("x = 1\r# one\r\n# two\n") == [Comment(2, 0, "# one"), Comment(3, 0, "# two")]
