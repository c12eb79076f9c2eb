//! peer-to-peer metadata for the te transfer engine: descriptors asked from their owner.
