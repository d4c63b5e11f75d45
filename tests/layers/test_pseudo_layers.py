"""The buffer as pseudo-layers, against the layout that the compiled code knows."""

import numpy as np
import pytest
import tensorflow as tf

from cudnn_rnn_tf import pseudo_layers
from cudnn_rnn_tf.config import RnnConfig

CONFIGS = {
    "lstm": RnnConfig("lstm", 2, 3, 4, direction="bidirectional"),
    "projection": RnnConfig("lstm", 2, 5, 4, num_proj=2),
    "gru": RnnConfig("gru", 3, 2, 4, bias_mode="single_recurrent"),
    "skip_input": RnnConfig(
        "rnn_tanh", 2, 3, 3, input_mode="skip_input", direction="bidirectional"
    ),
    "no_bias": RnnConfig("rnn_relu", 1, 3, 4, bias_mode="none"),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_cut_and_join(config):
    params = np.arange(config.layout.size, dtype=np.float64)
    layers = pseudo_layers.cut(config, tf.constant(params))
    assert len(layers) == config.num_layers * config.layout.num_dirs
    weights, biases = config.layout.params_to_canonical(params)
    names = config.layout.weight_names + config.layout.bias_names
    by_name = dict(zip(names, weights + biases, strict=True))
    ends = {
        "kernel": "kernel",
        "recurrent_kernel": "recurrent_kernel",
        "projection": "projection_kernel",
        "bias": "bias",
        "recurrent_bias": "recurrent_bias",
    }
    count = 0
    for index, layer in enumerate(layers):
        number, direction = divmod(index, config.layout.num_dirs)
        prefix = f"layer_{number}_{('forward', 'backward')[direction]}_"
        for field, end in ends.items():
            found = [
                tensor
                for name, tensor in by_name.items()
                if name.startswith(prefix) and side_of(name) == end
            ]
            part = getattr(layer, field)
            if part is None:
                assert not found
            else:
                np.testing.assert_array_equal(part, np.concatenate(found))
                count += len(found)
    assert count == len(names)
    np.testing.assert_array_equal(pseudo_layers.join(config, layers), params)


def side_of(name: str) -> str:
    """Returns the end of a canonical tensor's name, without its gate."""
    for end in ("recurrent_kernel", "projection_kernel", "recurrent_bias", "kernel", "bias"):
        if name.endswith(end):
            return end
    raise AssertionError(name)


def test_join_names_a_tensor_of_another_shape():
    config = CONFIGS["lstm"]
    layers = pseudo_layers.cut(config, tf.zeros([config.layout.size]))
    layers[3] = layers[3]._replace(kernel=tf.transpose(layers[3].kernel))
    with pytest.raises(ValueError, match=r"layer_1_backward_kernel.*\(12, 6\).*\(6, 12\)"):
        pseudo_layers.join(config, layers)
