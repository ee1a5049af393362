"""What tests share: servers, stores, engines, child programs, and the streams that they compare."""
