//! a transfer engine: typed builder, blocking and async batches over tcp and more.
