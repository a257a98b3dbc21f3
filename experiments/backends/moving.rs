//! When does moving to a GPU pay?

use super::*;

levels! {
    Where "where a product of two fp32 matrices is computed":
    Cpu "on the CPU",
    OnDevice as "device" "on the GPU, where the matrices are already",
    DeviceAndBack "on the GPU, with both matrices and the result moved each time",
}

cell! { Moved { size: Size, place: Where } }

pub fn grid() -> Grid<Moved> {
    Grid::new("to the device", step)
        .compare::<Where>()
        .full(Moved::cross([64, 256, 1024, 4096], Where::ALL))
        .quick(Moved::cross([256, 4096], Where::ALL))
        .smoke(Moved::cross(64, Where::ALL))
        .passes(CHECK | ROUNDS)
        .on(&[Platform::Gpu])
        .check(|_| equal(1e-4))
        .claim(
            Claim::new("to-device", "2", "moving to the GPU speeds computation up")
                .on(&[Platform::Gpu])
                .rule(ratio(TIME).of(|c: &Moved| c.place != Where::Cpu).less()),
        )
        .no_plots()
}

fn step(cell: Moved, bench: &Bench) -> Result<Step> {
    // Where the matrices live, and where they are computed with.
    let (home, away) = match cell.place {
        Where::Cpu => (Device::Cpu, Device::Cpu),
        Where::OnDevice => (bench.device, bench.device),
        Where::DeviceAndBack => (Device::Cpu, bench.device),
    };
    let matrix = || Tensor::randn([cell.size.0, cell.size.0], (Kind::Float, Device::Cpu));
    let inputs = [matrix(), matrix()].map(|matrix| matrix.to_device(home));
    Ok(Step::new(move |probe| {
        let (a, b) = (inputs[0].f_to_device(away)?, inputs[1].f_to_device(away)?);
        let result = no_grad(|| a.f_matmul(&b))?.f_to_device(home)?;
        probe.compare(RESULT_ERROR, || Ok(vec![result.to_device(Device::Cpu)]))
    }))
}
