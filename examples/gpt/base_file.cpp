#include "base_file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <stdexcept>
#include <utility>

namespace gpt {

namespace {

std::string text_of(std::vector<std::size_t> const& shape) { return nlohmann::json(shape).dump(); }

}  // namespace

BaseFile::BaseFile(std::string path) : path_(std::move(path)), file_(path_, std::ios::binary) {
  // The format: the length of a JSON text in 8 bytes, the text, and the data, which it describes.
  std::uint64_t length = 0;
  file_.read(reinterpret_cast<char*>(&length), sizeof(length));
  if (!file_) throw std::runtime_error("cannot read " + path_);
  try {
    std::uint64_t const bytes = std::filesystem::file_size(path_) - sizeof(length);
    if (length > bytes) throw std::runtime_error("it ends in its header");
    std::string text(static_cast<std::size_t>(length), '\0');
    file_.read(text.data(), static_cast<std::streamsize>(text.size()));
    size_ = bytes - length;
    auto const header = nlohmann::json::parse(text);
    for (auto const& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      if (entry.at("dtype") != "F32") throw std::runtime_error("'" + name + "' is not of F32");
      auto const begin = entry.at("data_offsets").at(0).get<std::uint64_t>();
      TensorInfo const tensor{.name = name, .shape = entry.at("shape")};
      if (begin > size_ || tensor.numel() > (size_ - begin) / sizeof(float)) {
        throw std::runtime_error("it ends in '" + name + "'");
      }
      entries_[name] = {tensor.shape, sizeof(length) + length + begin};
    }
  } catch (std::exception const& error) {
    throw std::runtime_error(path_ + " is no base: " + error.what());
  }
}

std::uint64_t BaseFile::identify(Config const& config) {
  auto const refuse = [&](std::string const& why) {
    throw std::runtime_error(path_ + " " + why + ": give the sizes that it was trained with");
  };
  std::size_t known = 0;
  std::uint64_t hash = 0;
  for (TensorInfo const& tensor : tensors(config)) {
    if (tensor.tied_to >= 0) continue;
    auto const found = entries_.find(tensor.name);
    if (found == entries_.end()) refuse("has no tensor '" + tensor.name + "'");
    if (found->second.shape != tensor.shape) {
      refuse("has '" + tensor.name + "' of shape " + text_of(found->second.shape) +
             ", and this model of " + text_of(tensor.shape));
    }
    ++known;
    std::vector<float> some(std::min<std::size_t>(tensor.numel(), 64));
    read(tensor.name, 0, some);
    for (float const value : some) hash = random_bits(hash, std::bit_cast<std::uint32_t>(value));
  }
  if (entries_.size() > known) {
    refuse("has " + std::to_string(entries_.size() - known) + " tensors that this model has not");
  }
  return hash;
}

void BaseFile::read(std::string const& name, std::size_t first, std::span<float> out) {
  file_.seekg(static_cast<std::streamoff>(entries_.at(name).place + first * sizeof(float)));
  file_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size_bytes()));
  if (!file_) throw std::runtime_error(path_ + " ends in '" + name + "'");
  bytes_read_ += out.size_bytes();
}

}  // namespace gpt
