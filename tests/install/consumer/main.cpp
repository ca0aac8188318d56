#include <iostream>

#include "tessera/tessera.h"

/// An error of the library is caught by its type here, so both sides have the same one.
int main() {
  const auto mesh = tessera::DeviceMesh::parse("dp=2,tp=4");
  std::cout << mesh.to_text() << '\n';
  try {
    tessera::DeviceMesh::parse("dp=");
  } catch (const tessera::InvalidArgument& error) {
    std::cout << error.what() << '\n';
    return 0;
  }
  return 1;
}
