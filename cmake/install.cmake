# cmake --install
