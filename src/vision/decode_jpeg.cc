// SPDX-License-Identifier: Apache-2.0
//
// JPEG through libjpeg-turbo. Its own memory source invents an end marker when the data runs out; ours is an error instead, so
// that a cut file is never shown in part. Warnings (a flipped byte in the entropy data) are tolerated.
#include <csetjmp>
#include <cstddef>
#include <cstdio>

#include <jpeglib.h>

#include "vision/codec.h"

namespace deepinfer::vision {

namespace {

struct Failure {
  jpeg_error_mgr base;  // first: libjpeg knows only this part
  std::jmp_buf jump;
};

void Fail(j_common_ptr codec) { std::longjmp(reinterpret_cast<Failure*>(codec->err)->jump, 1); }
void IgnoreMessage(j_common_ptr, int) {}
void IgnoreOutput(j_common_ptr) {}

void InitSource(j_decompress_ptr) {}
boolean OutOfData(j_decompress_ptr codec) {
  Fail(reinterpret_cast<j_common_ptr>(codec));
  return FALSE;
}
void Skip(j_decompress_ptr codec, long num_bytes) {
  if (num_bytes <= 0) return;
  if (static_cast<size_t>(num_bytes) > codec->src->bytes_in_buffer) Fail(reinterpret_cast<j_common_ptr>(codec));
  codec->src->next_input_byte += num_bytes;
  codec->src->bytes_in_buffer -= static_cast<size_t>(num_bytes);
}

uint8_t FromInk(int ink, int key, PixelRule rule) {
  if (rule == PixelRule::kServer) return static_cast<uint8_t>(key - (((255 - ink) * key) >> 8));
  const int t = (255 - ink) * key + 128;
  return static_cast<uint8_t>(key - ((t + (t >> 8)) >> 8));
}

}  // namespace

// No object with a destructor may live in this frame: errors leave it by longjmp.
ImageFault ReadJpeg(const CodecInput& input, Size& size, Image* image) {
  jpeg_decompress_struct codec;
  Failure failure;
  jpeg_source_mgr source{};
  volatile ImageFault fault = ImageFault::kDecode;  // what an error means at this point of the file
  codec.err = jpeg_std_error(&failure.base);
  failure.base.error_exit = Fail;
  failure.base.emit_message = IgnoreMessage;
  failure.base.output_message = IgnoreOutput;
  if (setjmp(failure.jump) != 0) {
    jpeg_destroy_decompress(&codec);
    return fault;
  }
  jpeg_create_decompress(&codec);
  source.next_input_byte = input.bytes.data();
  source.bytes_in_buffer = input.bytes.size();
  source.init_source = InitSource;
  source.fill_input_buffer = OutOfData;
  source.skip_input_data = Skip;
  source.resync_to_restart = jpeg_resync_to_restart;
  source.term_source = InitSource;
  codec.src = &source;
  jpeg_read_header(&codec, TRUE);

  fault = ImageFault::kEmptyImage;
  size = {static_cast<int>(codec.image_width), static_cast<int>(codec.image_height)};
  if (size.width > input.max_side || size.height > input.max_side) {
    jpeg_destroy_decompress(&codec);
    return ImageFault::kImageDimensionsTooLarge;
  }
  if (image == nullptr) {
    jpeg_destroy_decompress(&codec);
    return ImageFault::kNone;
  }
  const bool is_cmyk = codec.num_components == 4;
  codec.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  codec.dct_method = JDCT_ISLOW;
  codec.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&codec);
  image->Allocate(size);
  JSAMPARRAY inks = nullptr;
  if (is_cmyk) {
    inks = codec.mem->alloc_sarray(reinterpret_cast<j_common_ptr>(&codec), JPOOL_IMAGE, codec.output_width * 4, 1);
  }
  while (codec.output_scanline < codec.output_height) {
    uint8_t* out = image->row(static_cast<int>(codec.output_scanline));
    if (!is_cmyk) {
      jpeg_read_scanlines(&codec, &out, 1);
      continue;
    }
    jpeg_read_scanlines(&codec, inks, 1);
    const uint8_t* ink = inks[0];
    for (int x = 0; x < size.width; ++x, ink += 4, out += 3) {
      for (int c = 0; c < 3; ++c) out[c] = FromInk(ink[c], ink[3], input.rule);
    }
  }
  jpeg_finish_decompress(&codec);  // reads up to the end marker, which must be there
  jpeg_destroy_decompress(&codec);
  return ImageFault::kNone;
}

}  // namespace deepinfer::vision
