"""Makes ops raise errors that say what their kernels say, and no more."""

import functools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Where TensorFlow runs an op by itself, it puts the names of a function around it and of the op
# before and behind the kernel's message.
_ADDED = re.compile(r"^\{\{function_node __wrapped__\S*\}\} | \[Op:\S+\](?: name: .*)?$")


def with_plain_errors(op: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an op whose errors say what its kernel says, where it runs outside of a graph."""

    # AutoGraph cannot convert an op, and would warn of it. This takes over the decorator's mark,
    # but not the context that it enters in each call.
    @functools.wraps(tf.autograph.experimental.do_not_convert(op))
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return op(*args, **kwargs)
        except tf.errors.OpError as error:
            message = _ADDED.sub("", error.message)
            raise type(error)(error.node_def, error.op, message) from None

    return call
