//! life cycle, batches, notify and liveness of the te transfer engine.
