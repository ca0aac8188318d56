#include <iostream>

#include "tessera/mesh/device_mesh.h"

int main() {
  const auto mesh = tessera::DeviceMesh::parse("dp=2,tp=4");
  std::cout << mesh.to_text() << '\n';
}
