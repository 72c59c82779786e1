"""localpolicy: turn the log of a deployed recommender into a better policy, and know how far it has moved.

`localpolicy.api` holds the public functions, one behind each verb of the command line and with the same name. This
module stays empty, so that `lpi --help` need not import torch.
"""

__version__ = "0.1.0"
