// Reads records of a length in 8 bytes and as many bytes; answers each with a line: the canonical
// JSON of the text in it or "error: ...", then the digest of the bytes.
#include <cstdint>
#include <iostream>
#include <string>

#include "json.h"
#include "sha256.h"

int main() {
  uint64_t size = 0;
  while (std::cin.read(reinterpret_cast<char*>(&size), sizeof size)) {
    std::string bytes(size, '\0');
    std::cin.read(bytes.data(), static_cast<std::streamsize>(size));
    try {
      std::cout << cudnn_aot::CanonicalJson(cudnn_aot::ParseJson(bytes));
    } catch (const cudnn_aot::JsonError& error) {
      std::cout << "error: " << error.what();
    }
    std::cout << "\n" << cudnn_aot::Sha256Hex(bytes) << "\n";
  }
}
