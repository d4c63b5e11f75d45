"""Times networks that stand for many, beside PyTorch and Keras.

`benchmarks.models` says how. networks.json lists the networks, each with sequences of different
lengths and of full length.
"""

from benchmarks import models

if __name__ == "__main__":
    models.main(__doc__, "networks")
