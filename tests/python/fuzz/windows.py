"""Statements that read windows: convolutions of images, pooling, padding, interpolation."""

from grammar import Draw, value


def _image(d: Draw, least: int = 2) -> str | None:
    """A batch of images with channels, at least so many pixels wide and high."""

    def fits(v: object) -> bool:
        return v.is_floating_point() and v.dim() >= 3 and v.numel() > 0 and min(v.shape[-2:]) >= least

    x = d.some(lambda v: fits(v) and v.dim() == 4)
    if x:
        return x
    x = d.some(lambda v: fits(v) and v.dim() == 3)
    return x and f"{x}.unsqueeze({d.pick(0, 1)})"


@value(1)
def convolution(d: Draw) -> str | None:
    """With a weight that is a part of the image itself."""
    x = _image(d)
    if not x:
        return None
    w = f"{x}[:1, :, :2, :{d.pick(1, 2)}]"
    options = f"padding={d.pick(0, 1)}, stride={d.pick(1, 1, 2)}"
    return d.pick(
        f"F.conv2d({x}, {w}, {options}, dilation={d.pick(1, 1, 2)})",
        f"F.conv2d({x}, {w}.transpose(0, 1), groups={x}.shape[1], {options})",
        f"F.conv_transpose2d({x}, {w}.transpose(0, 1), {options})",
    )


@value(1)
def pooling(d: Draw) -> str | None:
    x = _image(d)
    if not x:
        return None
    if d.chance(0.5):
        d.require(f"apart({x})")
        return d.pick(
            f"F.max_pool2d({x}, 2, {d.pick(1, 2)}, padding={d.pick(0, 1)})",
            f"F.adaptive_max_pool2d({x}, {d.pick(1, 2)})",
            f"F.max_pool1d({x}.flatten(1, 2), 2, {d.pick(1, 2)})",
        )
    return d.pick(
        f"F.avg_pool2d({x}, 2, {d.pick(1, 2)}, padding={d.pick(0, 1)}, count_include_pad={d.pick(True, False)})",
        f"F.adaptive_avg_pool2d({x}, ({d.pick(1, 2)}, {d.pick(1, 3)}))",
        f"F.lp_pool2d({x} * {x} + 0.5, 2, 2)",
    )


@value(0.7)
def rearranged(d: Draw) -> str | None:
    x = _image(d)
    return x and d.pick(
        f"F.unfold({x}, 2, padding={d.pick(0, 1)}, stride={d.pick(1, 2)})",
        f"F.fold(F.unfold({x}, 2), {x}.shape[2:], 2)",
        f"F.pixel_unshuffle({x}[:, :, :2, :2], 2)",
        f"F.channel_shuffle({x}, 1)",
    )


@value(0.7)
def padded(d: Draw) -> str | None:
    x = _image(d)
    if not x:
        return None
    mode = d.pick("reflect", "replicate", "circular")
    sides = d.pick((1, 0), (0, 1), (1, 1), (1, 1, 1, 0))
    return f"F.pad({x}, {sides}, mode='{mode}')"


@value(0.7)
def interpolated(d: Draw) -> str | None:
    x = _image(d)
    return x and d.pick(
        f"F.interpolate({x}, scale_factor=2, mode='bilinear', align_corners={d.pick(True, False)})",
        f"F.interpolate({x}, size=({d.pick(1, 3)}, {d.pick(2, 5)}), mode='nearest')",
        f"F.interpolate({x}, size=3, mode='area')",
        f"F.interpolate({x}, scale_factor=2, mode='bicubic')",
    )
