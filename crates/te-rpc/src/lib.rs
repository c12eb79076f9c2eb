//! control frames, listener and client of the te transfer engine.
