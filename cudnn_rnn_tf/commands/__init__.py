"""The command `cudnn-rnn-tf`: its parser and what its subcommands do."""
