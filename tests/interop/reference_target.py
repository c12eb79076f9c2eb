"""The reference engine as a target: one registered buffer, filled with a pattern by --seed.

See reference_peer.py for the commands; a target is sent check, fill, notifies, ping and quit.
"""

import reference_peer

reference_peer.main(__doc__)
