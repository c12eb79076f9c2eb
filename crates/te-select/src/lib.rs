//! path selection of the te transfer engine as a pure, explainable decision.
