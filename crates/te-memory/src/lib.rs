//! owned memory, counted regions and the one audited copy routine of the te transfer engine.
