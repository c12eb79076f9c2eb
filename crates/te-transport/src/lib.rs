//! the transport contract of the te transfer engine.
