//! metadata store contract, keys, directory and segment cache of the te transfer engine.
