//! TCP transport of the te transfer engine, reference framing v1 and v2.
