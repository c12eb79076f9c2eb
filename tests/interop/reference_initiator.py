"""The reference engine as an initiator: writes to and reads from another segment, notifies and probes it.

See reference_peer.py for the commands. MC_TCP_PROTO=1 in the environment selects framing v1, else v2 is used
where the target offers it.
"""

import reference_peer

reference_peer.main(__doc__)
